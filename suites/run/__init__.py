"""What every suite does: options, selection, progress, shards, resume, record, exit status."""

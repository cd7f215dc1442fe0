"""The parts that all suites share: options, selection, progress, shards, resume, record, status."""

"""What is measured to be known, and asserted nowhere."""

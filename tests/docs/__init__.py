"""README and docs/ are what the checkout does."""

"""The profile suite: what a call costs in energy, at which clocks, and what held them down."""

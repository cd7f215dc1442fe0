"""The profile suite: a call's energy, its clocks, and the reasons for low clocks."""

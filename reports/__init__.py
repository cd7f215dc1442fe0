"""The record of a run and what is shown of it. Knows no torch, no triton, no other room."""

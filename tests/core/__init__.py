"""Tests of the core; `problems` holds what they share."""

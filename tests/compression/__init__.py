"""Tests of what crosses the network, bit by bit."""

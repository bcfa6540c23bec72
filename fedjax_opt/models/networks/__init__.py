"""The models' Flax Linen modules; they need flax, so nothing imports them until one is asked for."""

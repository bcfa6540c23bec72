"""Estimators: from a model and its clients to the constants of the bounds, with uncertainties."""

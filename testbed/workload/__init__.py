"""Demand matrices that are made, not recorded."""

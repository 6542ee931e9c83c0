"""Figures for people: tables and pictures."""

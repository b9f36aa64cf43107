"""Profiles and plans: what a GPU, a model and a purpose come to, worked out without either."""

"""Turns that another replica carries, because it owns the conversation's lanes."""

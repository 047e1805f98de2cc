"""This process among others on the same database: who lives, who owns what, and each one's part of the limits."""

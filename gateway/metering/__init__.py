"""What a key has used, what it may use, and what that costs."""

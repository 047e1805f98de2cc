"""What is kept for whoever watches the gateway: what each process is doing, and what became of the turns in sums."""

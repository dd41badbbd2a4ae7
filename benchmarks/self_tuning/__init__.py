"""How near a run whose drafters take turns comes to the best one of them, over eight workloads."""

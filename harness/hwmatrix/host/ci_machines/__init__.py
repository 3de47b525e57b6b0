"""CI runners: their labels, what they lack, what to clean up, and which targets they would run."""

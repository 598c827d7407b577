"""Who gets a message: subscriptions, shares and what is retained."""

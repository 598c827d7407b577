"""How programs reach their Redis or Valkey servers, and call functions there; no plugin."""

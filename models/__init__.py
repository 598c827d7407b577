"""The papers' simulations on the production policy code, with a virtual clock."""

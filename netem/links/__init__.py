"""Emulated links and the engines that carry them."""

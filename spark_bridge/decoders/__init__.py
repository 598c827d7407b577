"""Payloads to JSON texts, one module for each format. Importable without Spark."""

"""What users switch on in the policy file, one folder a plugin."""

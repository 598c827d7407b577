"""The evaluation of paper 002: withholding policies, figures 8 and 9, and on bad links."""

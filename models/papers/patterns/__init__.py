"""The evaluation of paper 003: patterns of publish/subscribe, figures 7 to 11."""

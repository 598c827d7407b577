"""What a run showed: rows, figures, reports and plots."""

"""Sessions, messages and wills that outlive the process, and the databases that hold them."""

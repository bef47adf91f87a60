"""The ``lockstep`` command: one file for each subcommand, and for each idea that it needs."""

"""Measuring the order in which sentences were filled: its shape, its ties to language, and whole test sets."""

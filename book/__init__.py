"""The chapters, and what their notebooks import: figures and data."""

"""The page that the report and the explorer share: its JavaScript and CSS, and the Python that bundles them."""

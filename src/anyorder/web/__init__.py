"""The page that the report and the explorer share."""

"""The tables of the paper (Jiang & Bansal 2021) on your data: what they hold, and the jobs behind them."""

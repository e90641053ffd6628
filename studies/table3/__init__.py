"""Kept trials of table 3 of Xiang, Wang & Wang 2024, and the script that keeps them."""

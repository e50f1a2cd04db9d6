"""What results look like: attention views, HTML pages, and how objects show themselves in a notebook."""

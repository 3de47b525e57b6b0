"""Reports for people: queries over the merged database, rendered by templates."""

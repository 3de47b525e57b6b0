"""What people read: queries over the merged database, rendered by templates."""

"""Results for people: tables, pictures and pages. Nothing here prints, or computes figures of its own."""

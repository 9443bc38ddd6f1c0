"""Green-list schemes: KGW and its descendants."""

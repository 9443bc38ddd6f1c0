"""What people read: pages made from results. Reports compute nothing."""

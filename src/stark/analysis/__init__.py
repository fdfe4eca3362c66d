"""Pure statistics over stores."""

mod gains;

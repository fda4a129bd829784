//! libscore.a

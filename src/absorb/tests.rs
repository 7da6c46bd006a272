mod patterns;

use super::*;

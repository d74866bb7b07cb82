//! Gives the shared object its soname.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libinsane_tc.so.0");
}

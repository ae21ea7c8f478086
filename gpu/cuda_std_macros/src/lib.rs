//! `#[kernel]`: turns a function into a GPU entry point and, on the host, into something the simulator and a driver can launch.
//! What a kernel may call lives in `cuda_std`, not here.
use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Error, FnArg, Ident, ItemFn, LitInt, Pat, ReturnType, Token, Type, parse_macro_input, spanned::Spanned};

/// Marks a GPU entry point: `#[kernel]` or `#[kernel(threads = 256, blocks_per_sm = 2)]`.
///
/// The function must be `pub unsafe fn name(args)` without a return value or generics; every argument must be `Copy`
/// and of plain layout (pointers such as `Global<f32>`, integers, floats).
///
/// * For `nvptx64` it becomes an unmangled `extern "ptx-kernel"` function. The launch bounds are left in the PTX as a
///   comment that `cuda_builder` turns into `.maxntid` and `.minnctapersm`, since rustc has no attribute for them.
/// * On the host the function stays as it is (the simulator runs it), and a module of the same name holds `KERNEL`, a
///   `cuda_std::launch::Kernel` that names the entry point and types its arguments for simulator and driver alike.
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let bounds = parse_macro_input!(attribute as Bounds);
    let function = parse_macro_input!(item as ItemFn);
    expand(&bounds, &function).unwrap_or_else(Error::into_compile_error).into()
}

/// Launch bounds; 0 stands for "not given".
#[derive(Default)]
struct Bounds {
    threads: u32,
    blocks_per_sm: u32,
}

impl Parse for Bounds {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut bounds = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let literal: LitInt = input.parse()?;
            let value = literal.base10_parse::<u32>()?;
            match key.to_string().as_str() {
                "threads" if (1..=1024).contains(&value) => bounds.threads = value,
                "blocks_per_sm" if (1..=32).contains(&value) => bounds.blocks_per_sm = value,
                "threads" => return Err(Error::new(literal.span(), "`threads` must be 1 to 1024")),
                "blocks_per_sm" => return Err(Error::new(literal.span(), "`blocks_per_sm` must be 1 to 32")),
                _ => return Err(Error::new(key.span(), "expected `threads = N` or `blocks_per_sm = N`")),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if bounds.blocks_per_sm != 0 && bounds.threads == 0 {
            return Err(Error::new(Span::call_site(), "`blocks_per_sm` needs `threads`"));
        }
        Ok(bounds)
    }
}

fn expand(bounds: &Bounds, function: &ItemFn) -> syn::Result<Tokens> {
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        return Err(Error::new(
            signature.span(),
            "a kernel must be an `unsafe fn`: it trusts the pointers it is given",
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(signature.generics.span(), "a kernel cannot be generic: write one kernel per instance"));
    }
    if !matches!(signature.output, ReturnType::Default) {
        return Err(Error::new(signature.output.span(), "a kernel returns nothing: write to a buffer"));
    }
    let (names, types) = arguments(function)?;
    let (name, attributes, visibility, body) = (&signature.ident, &function.attrs, &function.vis, &function.block);
    let text = name.to_string();
    let (threads, blocks_per_sm) = (bounds.threads, bounds.blocks_per_sm);
    let comment = format!("// coppice-launch-bounds {text} threads={threads} blocks_per_sm={blocks_per_sm}");
    let module_doc = format!("Launch description of the kernel `{text}`.");
    let fields: Vec<Ident> = (0..types.len()).map(|i| format_ident!("a{i}")).collect();
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(#comment);

        #(#attributes)*
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        #visibility unsafe extern "ptx-kernel" fn #name(#(#names: #types),*) #body

        #(#attributes)*
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(clippy::too_many_arguments)]
        #visibility unsafe fn #name(#(#names: #types),*) #body

        #[doc = #module_doc]
        #[cfg(not(target_arch = "nvptx64"))]
        #visibility mod #name {
            #[allow(unused_imports)]
            use super::*;

            /// Entry point, launch bounds and argument types.
            #[allow(clippy::type_complexity)]
            pub const KERNEL: ::cuda_std::launch::Kernel<(#(#types,)*)> = ::cuda_std::launch::Kernel {
                name: #text,
                threads: #threads,
                blocks_per_sm: #blocks_per_sm,
                // SAFETY: on the host a kernel reaches memory through `cuda_std` only, which checks every access.
                entry: |(#(#fields,)*)| unsafe { super::#name(#(#fields),*) },
            };
        }
    })
}

fn arguments(function: &ItemFn) -> syn::Result<(Vec<Ident>, Vec<Type>)> {
    let mut names = Vec::new();
    let mut types = Vec::new();
    for argument in &function.sig.inputs {
        let FnArg::Typed(argument) = argument else {
            return Err(Error::new(argument.span(), "a kernel has no `self`"));
        };
        let Pat::Ident(pattern) = &*argument.pat else {
            return Err(Error::new(argument.pat.span(), "a kernel argument must be a plain name"));
        };
        names.push(pattern.ident.clone());
        types.push((*argument.ty).clone());
    }
    Ok((names, types))
}

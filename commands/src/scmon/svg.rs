//! The screen as SVG, for documents and mails.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Pixels of a cell.
const CELL_PIXELS: (u16, u16) = (8, 17);

/// Renders the cells of the buffer, in a fixed-width font on a dark background.
pub fn render(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (width, height) = (area.width * CELL_PIXELS.0 + 16, area.height * CELL_PIXELS.1 + 16);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"DejaVu Sans Mono, monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#101418\"/>\n"
    );
    for y in 0..area.height {
        let mut x = 0;
        while x < area.width {
            let first = &buffer[(x, y)];
            let has_same_style = |x: &u16| style_of(&buffer[(*x, y)]) == style_of(first);
            let end = (x..area.width).take_while(has_same_style).last().unwrap_or(x) + 1;
            let text: String = (x..end).map(|x| buffer[(x, y)].symbol()).collect();
            if !text.trim().is_empty() {
                write_text_run(&mut out, first, (x, y), end - x, &text);
            }
            x = end;
        }
    }
    out.push_str("</svg>\n");
    out
}

fn style_of(cell: &Cell) -> (Color, Modifier) {
    (cell.fg, cell.modifier)
}

fn write_text_run(out: &mut String, cell: &Cell, (x, y): (u16, u16), count: u16, text: &str) {
    let color = match cell.fg {
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
        Color::DarkGray => "#555d66".to_owned(),
        _ => "#d8dee4".to_owned(),
    };
    let weight = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let faint = if cell.modifier.contains(Modifier::DIM) { " opacity=\"0.6\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" textLength=\"{}\" fill=\"{color}\"{weight}{faint} \
         xml:space=\"preserve\">{text}</text>",
        8 + x * CELL_PIXELS.0,
        8 + y * CELL_PIXELS.1 + 13,
        count * CELL_PIXELS.0,
    );
}

//! The families of learning curves, and their fit by the Levenberg-Marquardt method. All parameters start at 1, as in
//! `SciPy`'s `curve_fit`.

/// The maximum number of parameters of a family.
const MAX_FAMILY_PARAMETERS: usize = 4;

/// The parameters of a curve. A family with fewer parameters ignores the last ones.
type Parameters = [f64; MAX_FAMILY_PARAMETERS];

/// A family of curves.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    /// The number of parameters of the family.
    parameter_count: usize,
    /// The parameters if no fit is possible.
    default_parameters: Parameters,
    formula: fn(f64, &Parameters) -> f64,
}

/// NNI's twelve families, with its formulas.
pub(super) const CURVE_FAMILIES: [Family; 12] = [
    Family {
        name: "vap",
        parameter_count: 3,
        default_parameters: [-0.622_028, -0.470_050, 0.042_322, 0.0],
        formula: |x, [a, b, c, _]| (a + b / x + c * x.ln()).exp(),
    },
    Family {
        name: "pow3",
        parameter_count: 3,
        default_parameters: [0.84, 0.52, 0.01, 0.0],
        formula: |x, [c, a, alpha, _]| c - a * x.powf(-alpha),
    },
    Family {
        name: "linear",
        parameter_count: 2,
        default_parameters: [1.0, 0.0, 0.0, 0.0],
        formula: |x, [a, b, ..]| a * x + b,
    },
    Family {
        name: "logx_linear",
        parameter_count: 2,
        default_parameters: [0.378_106, 0.046_506, 0.0, 0.0],
        formula: |x, [a, b, ..]| a * x.ln() + b,
    },
    Family {
        name: "dr_hill_zero_background",
        parameter_count: 3,
        default_parameters: [0.772_320, 0.586_449, 2.460_843, 0.0],
        formula: |x, [theta, eta, kappa, _]| {
            theta * x.powf(*eta) / (kappa.powf(*eta) + x.powf(*eta))
        },
    },
    Family {
        name: "log_power",
        parameter_count: 3,
        default_parameters: [0.77, 2.98, -0.51, 0.0],
        formula: |x, [a, b, c, _]| a / (1.0 + (x / b.exp()).powf(*c)),
    },
    Family {
        name: "pow4",
        parameter_count: 4,
        default_parameters: [0.1, 200.0, 0.0, 0.8],
        formula: |x, [alpha, a, b, c]| c - (a * x + b).powf(-alpha),
    },
    Family {
        name: "mmf",
        parameter_count: 4,
        default_parameters: [0.7, 0.1, 0.01, 5.0],
        formula: |x, [alpha, beta, kappa, delta]| {
            alpha - (alpha - beta) / (1.0 + (kappa * x).powf(*delta))
        },
    },
    Family {
        name: "exp4",
        parameter_count: 4,
        default_parameters: [0.7, 0.8, -0.8, 0.3],
        formula: |x, [c, a, b, alpha]| c - (-a * x.powf(*alpha) + b).exp(),
    },
    Family {
        name: "ilog2",
        parameter_count: 2,
        default_parameters: [0.78, 0.43, 0.0, 0.0],
        formula: |x, [c, a, ..]| c - a / x.ln(),
    },
    Family {
        name: "weibull",
        parameter_count: 4,
        default_parameters: [0.7, 0.1, 0.01, 1.0],
        formula: |x, [alpha, beta, kappa, delta]| {
            alpha - (alpha - beta) * (-(kappa * x).powf(*delta)).exp()
        },
    },
    Family {
        name: "janoschek",
        parameter_count: 4,
        default_parameters: [0.73, 0.07, 0.355, 0.46],
        formula: |x, [a, beta, k, delta]| a - (a - beta) * (-k * x.powf(*delta)).exp(),
    },
];

/// A curve of a family.
#[derive(Debug)]
pub(super) struct FittedCurve {
    pub(super) family: &'static Family,
    parameters: Parameters,
}

/// The number of evaluations per parameter. `curve_fit` gives up after 200 (n + 1) evaluations for n parameters.
const EVALUATIONS_PER_PARAMETER: usize = 200;

/// The relative change of errors and parameters below which the fit ends.
const FIT_TOLERANCE: f64 = 1.490_12e-8;

impl FittedCurve {
    /// Fits a curve of a family to the results of steps 1, 2, 3 and so on. If no fit is found, the curve has the
    /// family's default parameters.
    pub(super) fn fit_to(family: &'static Family, results: &[f64]) -> Self {
        let parameters = fit_parameters(family, results).unwrap_or(family.default_parameters);
        Self { family, parameters }
    }

    pub(super) fn value_at(&self, x: f64) -> f64 {
        (self.family.formula)(x, &self.parameters)
    }
}

fn fit_parameters(family: &Family, results: &[f64]) -> Option<Parameters> {
    if results.len() < family.parameter_count {
        return None;
    }
    let n = family.parameter_count;
    let errors = |p: &Parameters| -> Vec<f64> {
        (1..)
            .zip(results)
            .map(|(x, y): (u32, &f64)| (family.formula)(f64::from(x), p) - y)
            .collect()
    };
    let square = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>();
    let mut parameters = [1.0; MAX_FAMILY_PARAMETERS];
    let mut current = errors(&parameters);
    let mut sum = square(&current);
    let mut damping = 1e-3;
    let mut left = EVALUATIONS_PER_PARAMETER * (n + 1);
    while sum.is_finite() {
        // Forward differences, with MINPACK's step.
        let mut slopes = vec![[0.0; MAX_FAMILY_PARAMETERS]; results.len()];
        for j in 0..n {
            let step = f64::EPSILON.sqrt() * parameters[j].abs().max(f64::MIN_POSITIVE.sqrt());
            let mut moved = parameters;
            moved[j] += step;
            for (row, (after, before)) in slopes.iter_mut().zip(errors(&moved).iter().zip(&current))
            {
                row[j] = (after - before) / step;
            }
        }
        left = left.checked_sub(n)?;
        loop {
            left = left.checked_sub(1)?;
            let step = least_squares_step(n, &slopes, &current, damping);
            let moved: Parameters = std::array::from_fn(|j| parameters[j] + step[j]);
            let after = errors(&moved);
            let reached = square(&after);
            let small = (0..n).all(|j| step[j].abs() <= FIT_TOLERANCE * parameters[j].abs());
            if reached < sum {
                let gained = (sum - reached) / sum;
                (parameters, current, sum) = (moved, after, reached);
                damping = (damping / 10.0).max(1e-15);
                if small || gained <= FIT_TOLERANCE || sum == 0.0 {
                    return Some(parameters);
                }
                break;
            }
            if small || damping > 1e15 {
                return Some(parameters);
            }
            damping *= 10.0;
        }
    }
    None
}

/// Returns the damped least-squares step: solves (J'J + damping diag(J'J)) step = -J'errors.
fn least_squares_step(n: usize, slopes: &[Parameters], errors: &[f64], damping: f64) -> Parameters {
    let mut system = [[0.0; MAX_FAMILY_PARAMETERS + 1]; MAX_FAMILY_PARAMETERS];
    for (row, error) in slopes.iter().zip(errors) {
        for i in 0..n {
            for j in 0..n {
                system[i][j] += row[i] * row[j];
            }
            system[i][MAX_FAMILY_PARAMETERS] -= row[i] * error;
        }
    }
    for (i, row) in system.iter_mut().enumerate().take(n) {
        row[i] += damping * row[i].max(f64::MIN_POSITIVE);
    }
    solve_linear_system(n, &mut system)
}

/// Solves a linear system by Gaussian elimination with the largest pivot. A direction without slope gets the step 0.
fn solve_linear_system(
    n: usize,
    system: &mut [[f64; MAX_FAMILY_PARAMETERS + 1]; MAX_FAMILY_PARAMETERS],
) -> Parameters {
    for column in 0..n {
        let pivot = (column..n)
            .max_by(|a, b| system[*a][column].abs().total_cmp(&system[*b][column].abs()))
            .unwrap_or(column);
        system.swap(column, pivot);
        let head = system[column];
        if head[column].abs() <= f64::MIN_POSITIVE {
            continue;
        }
        for row in system.iter_mut().take(n).skip(column + 1) {
            let factor = row[column] / head[column];
            for (below, above) in row.iter_mut().zip(head) {
                *below -= factor * above;
            }
        }
    }
    let mut solution = [0.0; MAX_FAMILY_PARAMETERS];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| system[i][j] * solution[j]).sum();
        if system[i][i].abs() > f64::MIN_POSITIVE {
            solution[i] = (system[i][MAX_FAMILY_PARAMETERS] - known) / system[i][i];
        }
    }
    solution
}

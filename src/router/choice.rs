//! One target out of several by what each costs.

use super::draws::Draws;

/// A target by cost: the cheapest, equal ones with equal chance; or at random by cost with a temperature. Source: Dynamo
/// 1.6.1 worker selection.
pub(super) fn choose(costs: &[(f64, usize)], temperature: f64, draws: &mut Draws) -> Option<usize> {
    let each = || costs.iter().map(|&(cost, _)| cost);
    let least = each().min_by(f64::total_cmp)?;
    if temperature == 0.0 {
        return cheapest(costs, least, draws);
    }
    let most = each().max_by(f64::total_cmp)?;
    let spread = (most - least) * temperature;
    let weight = |cost: f64| {
        if spread > 0.0 {
            (-(cost - least) / spread).exp()
        } else {
            1.0
        }
    };
    let total: f64 = each().map(weight).sum();
    let mut left = draws.unit() * total;
    for &(cost, number) in costs {
        left -= weight(cost);
        if left < 0.0 {
            return Some(number);
        }
    }
    costs.last().map(|&(_, number)| number)
}

fn cheapest(costs: &[(f64, usize)], least: f64, draws: &mut Draws) -> Option<usize> {
    let mut chosen = None;
    let mut equal = 0;
    for &(cost, number) in costs {
        if cost.total_cmp(&least).is_gt() {
            continue;
        }
        equal += 1;
        if equal == 1 || draws.below(equal) == 0 {
            chosen = Some(number);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_targets_are_chosen_alike_often_and_dearer_ones_never() {
        let mut draws = Draws::new(4);
        let costs = [(2.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)];
        let mut counts = [0; 4];
        for _ in 0..3000 {
            counts[choose(&costs, 0.0, &mut draws).unwrap()] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(
            counts[1..].iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(choose(&[], 0.0, &mut draws), None);
    }

    #[test]
    fn a_temperature_lets_dearer_targets_have_their_share() {
        let mut draws = Draws::new(4);
        // One spread of costs at temperature 1: e to 1.
        let dear = (0..5000)
            .filter(|_| choose(&[(3.0, 0), (5.0, 1)], 1.0, &mut draws) == Some(1))
            .count();
        assert!((1200..1500).contains(&dear), "{dear}");
    }
}

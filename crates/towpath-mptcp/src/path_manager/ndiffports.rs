//! Several subflows between the first two addresses, from different ports (mptcp.org's
//! `ndiffports`): for networks that spread flows over equal paths by their ports (ECMP).

use super::subflow_opener::{SubflowEndpoints, SubflowOpener};
use super::{PathManager, PathManagerAction, PathManagerEvent, PathManagerView};

/// Default number of subflows, including the first one, as in mptcp.org.
const DEFAULT_SUBFLOWS: usize = 2;

/// Path manager `ndiffports`, see the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ndiffports;

impl PathManager for Ndiffports {
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        let (PathManagerEvent::Established, true, false) =
            (event, view.client, view.no_join_to_initial)
        else {
            return;
        };
        let (Some(initial), Some(remote)) = (view.subflows.first(), view.remote.first()) else {
            return;
        };
        let (local_id, local, remote) = (initial.local_id, initial.local.ip(), *remote);
        let mut opener = SubflowOpener::new(view, actions);
        for _ in view.subflows.len()..DEFAULT_SUBFLOWS {
            opener.open_parallel(SubflowEndpoints {
                local_id,
                local,
                remote,
                backup: initial.backup,
            });
        }
    }
}
